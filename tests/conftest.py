"""What every test of this project may use."""

pytest_plugins = ["pytester"]
