"""Where a life runs, and how it dies."""
