"""The parts of bench/compare.py: configurations to measure, backends, timing, report and plots."""
