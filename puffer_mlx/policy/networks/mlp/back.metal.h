// A chunk of a layer back: u becomes the gradient by it.
        if (l < L - 1 && !ALL) {
#include "forward.metal.h"
        }
        for (uint k = me; k < M * H; k += THREADS) {
          uint row = k / H, channel = k % H;
          u.put(row, channel, dout.at(row, channel) * gelu_slope(u.at(row, channel)));
        }
