"""The parts that a collector is run with: prompts, loader, engine, buffer, trainer."""
