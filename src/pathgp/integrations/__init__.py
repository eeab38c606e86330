"""Interfaces to other packages. Import each module by itself: none needs the package of another."""
