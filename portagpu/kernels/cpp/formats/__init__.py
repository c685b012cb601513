"""What compilers leave behind: readers of code objects and of assemblers' reports."""
