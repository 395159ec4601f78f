"""The trainings are no modules of tests, and need libraries that may not be there."""

collect_ignore = ["accelerate_loop.py", "hf_trainer.py", "lightning_fit.py", "plain_torch.py"]
