"""A trained model at work: text that it continues, its loss on held-out data, scores of tasks.

::

    sample_texts       checkpoint, prompts ─► tokens ─► text, up to a stop string
      └─ tokens        a batch of texts, with cached keys and values where the layers can
           └─ sampling      temperature, top k, top p
    held_out_losses    checkpoint, datasets ─► loss and perplexity
    task_scores        checkpoint, tasks of the lm-evaluation-harness ─► scores
      └─ harness_model           a checkpoint as a model of the harness
           └─ likelihoods        of tokens after others
"""
