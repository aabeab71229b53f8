"""A trained model at work: text that it continues, and its loss on held-out data.

::

    sample_texts       checkpoint, prompts ─► tokens ─► text, up to a stop string
      └─ tokens        a batch of texts, with cached keys and values where the layers can
           └─ sampling      temperature, top k, top p
    held_out_losses    checkpoint, datasets ─► loss and perplexity
"""
