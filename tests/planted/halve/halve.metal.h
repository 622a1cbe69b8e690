#pragma once

KERNEL halve<Low, N>: Low x -> Low y {
  if (i < (uint)N) y[i] = (Low)(0.5f * (float)x[i]);
}
