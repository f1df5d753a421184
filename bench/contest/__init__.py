"""The parts of bench/compare.py: cells to measure, contenders, timing, report and plots."""
