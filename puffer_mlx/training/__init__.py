"""The training loop: trainer, learner, rollout collector, and the devices that they use."""
