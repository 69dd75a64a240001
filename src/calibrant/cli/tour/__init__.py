"""The demonstration: real logits repaired and certified, five losses trained on digits, all compared."""
