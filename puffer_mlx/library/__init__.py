"""What a program or a notebook calls: the names at the top of the package (docs/library.md)."""
