"""Common image corruptions (ImageNet-C, CIFAR-10-C) at five severities."""
