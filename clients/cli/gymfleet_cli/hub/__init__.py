"""Hugging Face's hub: push data and checkpoints there, and fetch them as untrusted files from strangers."""
