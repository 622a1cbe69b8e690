// A layer: its input and its output, what is kept for the way back, and its weights; the first and the last of its states before
// all steps, and all of them before the chunk (STATES, S, H), which are in `begun` unless it is the first.
          Swizzled<Low, H> x = {low + l * M * H}, out = {low + (l + 1) * M * H};
          Swizzled<Low, H> states = {low + AT_S + (ALL ? l : 0) * HELD * M * H}, further_states = {states.numbers + (HELD > 1 ? M * H : 0)};
          Swizzled<Low, U> u = {low + AT_U + (ALL ? l : 0) * M * U};
          Swizzled<Low, H> held = {low + AT_LAYERS + l * LAYER}, last_held = {held.numbers + (MATRICES - 1) * ROWS * H * H};
          auto weight = Either<(KEPT > 1)>::of(held, Padded<H>{WEIGHTS_OF(l), ROWS * H, H});
          auto last_weight = Either<(KEPT > 1)>::of(last_held, Padded<H>{WEIGHTS_OF(l) + (MATRICES - 1) * ROWS * H * H, ROWS * H, H});
          IN_SHARED float *carried = carries + l * STATES * UNITS, *latest = carries + L * STATES * UNITS;
          IN_DEVICE const float *first_state = OF_LAYER(first, l * STATES), *last_state = OF_LAYER(first, l * STATES + STATES - 1);
          IN_DEVICE float* begun = begins + (uint)((chunk * L + l) * STATES * H) * S;
