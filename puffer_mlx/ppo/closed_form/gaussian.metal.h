// The log-probability of a sample's actions.
#define DISTANCE(k) ((actions[i * A + (k)] - within((float)y[(k) * n + i], limit[0])) * exp(-(float)logstd[k]))
  float logprob = 0.0f;
  for (uint k = 0; k < A; ++k) logprob += -0.5f * DISTANCE(k) * DISTANCE(k) - HALF_LOG_TWO_PI - (float)logstd[k];
