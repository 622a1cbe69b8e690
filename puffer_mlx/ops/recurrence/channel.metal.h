// Part of a kernel: the channel that is this thread's at the moment, and the one after it.
      uint channel = me + c_ * THREADS, next = me + (c_ + 1) % C * THREADS;
      bool mine = channel < H;
      channel = mine ? channel : H - 1;
      next = next < H ? next : H - 1;
