"""What a vendor's compilers bring, and what machine code says of itself."""
