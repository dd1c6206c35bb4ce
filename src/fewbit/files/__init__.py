"""Files that models are kept in."""
