// Part of a kernel: reads what a chunk of inputs is multiplied with, for CHANNEL, into `ahead`.
#pragma unroll
        for (int v = 0; v < U * G; ++v) {
          uint input = at + v / G;
          input = D % U == 0 || input < D ? input : D - 1;  // beyond D, what it meets is 0
          ahead[v / G][v % G] = (float)weight_hh[(input * G + v % G) * H + CHANNEL];
        }
#undef CHANNEL
