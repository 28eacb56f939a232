"""Data that is learned from: how it is read, converted, filtered and augmented."""
