"""What machines and tools say of their devices' state."""
