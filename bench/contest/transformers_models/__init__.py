"""Models of transformers with random weights: what bench/transformers_models.py and bench/train_step.py measure."""
