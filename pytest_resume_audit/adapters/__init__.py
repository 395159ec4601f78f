"""Audits of what other projects have made."""
