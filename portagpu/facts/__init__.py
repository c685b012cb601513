"""What is stated: by the machine, by tools, by vendors and by targets. Nothing is judged."""
