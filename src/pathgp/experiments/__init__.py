"""Experiments that anyone can run."""
