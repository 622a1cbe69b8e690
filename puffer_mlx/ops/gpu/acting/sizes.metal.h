// How a kernel that acts begins: sizes, and where things are. What is behind the features is the network's own, from `own`
// on.
  SHARED Rows<R> room[ROOM];
  uint D = (uint)sizes[0], H = (uint)sizes[1], L = (uint)sizes[2], A = (uint)sizes[3], heads = (uint)sizes[4];
  uint n = (uint)sizes[5], chunk = (uint)sizes[6];
  uint first = block * R * GROUPS, units = H * GROUPS;
  IN_DEVICE const int* crew = seats + (SEATS > 0 ? block * (1 + R * GROUPS) : 0);  // who acts, and for which rows
  IN_SHARED Rows<R>* outputs = room;  // (GROUPS, A + 1)
  IN_SHARED Rows<R>* features = outputs + (A + 1) * GROUPS;
  IN_SHARED Rows<R>* own = features + units + (chunk > H ? chunk : H) * GROUPS;
  IN_DEVICE const float* encoder = weights + (SEATS > 0 ? (uint)crew[0] * (uint)sizes[13] : 0);
  IN_DEVICE const float* decoder = encoder + (D + 1) * H;
  IN_DEVICE const float* logstd = decoder + (H + 1) * (A + 1);
  IN_DEVICE const float* network = logstd + heads;
