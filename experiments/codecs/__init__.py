"""The effect of compressing messages on the loss, and the bytes that it saves."""
