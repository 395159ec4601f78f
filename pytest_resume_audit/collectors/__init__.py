"""Reference collectors: how to do it, and how it went wrong."""
