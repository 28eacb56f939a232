"""Hugging Face's hub: data and checkpoints are pushed there, and fetched as what they are, files of strangers."""
