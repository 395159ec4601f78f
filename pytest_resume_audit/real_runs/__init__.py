"""What a real run leaves behind, and what can be told from it."""
