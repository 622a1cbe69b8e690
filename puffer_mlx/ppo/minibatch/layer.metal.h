// A layer: its input, its output, its states and gates for the backward pass, and its weight.
          Swizzled<Low, H> x = {low + l * M * H}, out = {low + (l + 1) * M * H};
          Swizzled<Low, H> states = {low + AT_S + (ALL ? l : 0) * M * H};
          Swizzled<Low, U> u = {low + AT_U + (ALL ? l : 0) * M * U};
          Swizzled<Low, H> held = {low + AT_LAYERS + l * LAYER};
          auto weight = Either<(KEPT > 1)>::of(held, Padded<H>{OF_LAYER(layer, l), 3 * H, H});
