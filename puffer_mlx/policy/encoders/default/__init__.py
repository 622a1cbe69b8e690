"""One product, in each dialect's form."""
