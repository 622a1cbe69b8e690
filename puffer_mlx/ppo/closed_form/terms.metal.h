// What of the loss follows from a sample's log-probability and value, and the gradients by the two.
    float each = scale[0] / (float)n, target = adv[i];
    float logratio = logprob - old_logprob[i], new_ratio = exp(logratio);
    float gain = live ? -target : -weight[i] * ((target - mean) / (deviation + 1e-8f));
    float near = new_ratio < settings[0] ? settings[0] : new_ratio > settings[1] ? settings[1] : new_ratio;
    bool clipped = gain * near > gain * new_ratio;
    by_logprob = each * ((clipped ? 0.0f : gain) * new_ratio);

    float new_value = (float)y[A * n + i], reach = settings[4];
    float expected = (live ? new_value : old_value[i]) + target, change = new_value - old_value[i];
    float moved = change < -reach ? -reach : change > reach ? reach : change;
    float error = new_value - expected, moved_error = old_value[i] + moved - expected;
    bool held = moved_error * moved_error > error * error;
    float slope_of_error = held ? (change > -reach && change < reach ? moved_error : 0.0f) : error;
    dy[A * n + i] = (Low)(each * settings[3] * slope_of_error);

    ratio[i] = new_ratio;
    value[i] = new_value;
    sums[0] = clipped ? gain * near : gain * new_ratio;
    sums[1] = held ? moved_error * moved_error : error * error;
    sums[2] = -logratio;
    sums[3] = new_ratio - 1.0f - logratio;
    float away = new_ratio - 1.0f;
    sums[4] = (away < 0.0f ? -away : away) > settings[2] ? 1.0f : 0.0f;
