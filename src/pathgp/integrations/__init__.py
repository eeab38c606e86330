"""Faces of the library for other packages, each imported by itself: none of them is needed by the others."""
