"""What is shown of an audit."""
