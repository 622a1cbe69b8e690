// What of the loss follows from a sample's log-probability and value, and the gradients by the two.
    float each = scale[0] / (float)n, target = adv[i];
    float gain = live ? -target : -weight[i] * ((target - mean) / (deviation + 1e-8f));
    float new_value = (float)y[A * n + i], known = live ? new_value : old_value[i];
    PPONumbers numbers = {settings[0], settings[1], settings[2], settings[4]};
    PPOTerms terms;
    ppo_terms(logprob, old_logprob[i], gain, new_value, old_value[i], known, target, numbers, terms);
    dy[A * n + i] = (Low)(each * settings[3] * terms.by_value);
    ratio[i] = terms.ratio;
    value[i] = new_value;
    sums[0] = terms.policy;
    sums[1] = terms.square;
    sums[2] = terms.old_kl;
    sums[3] = terms.kl;
    sums[4] = terms.outside;
