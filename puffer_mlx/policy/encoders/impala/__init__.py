"""Three blocks of residual convolutions and a product: Espeholt et al., 2018."""

NAME = "ImpalaEncoder"
