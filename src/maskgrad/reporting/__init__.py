"""What a run says about itself: the journal, and its readers.

The journal (`journal.jsonl`) is the single source of truth; console, tables, trackers and plots only read its
records. A record is `{"event", "step", ...fields, "time": {...}}`. The fields the readers know:

    run      recipe, algorithm, model, params, trainable, task, seed, total_steps; `step` is the step a run starts from
    rollout  reward; time.tokens_per_second
    update   total_steps, loss, grad_norm, reward; `step` counts the updates done
    eval     split, n, accuracy, interval [lo, hi], metrics {name: value}; step 0 is before training
    warning  message
    end      reason; "completed" when every step was done

Unknown events and fields are kept in the journal and passed over by the readers.
"""
