"""Who does what, when and where: the trainer, its learner, its collector, and their devices."""
