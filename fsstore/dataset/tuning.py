"""The numbers that tune groups, each with what it trades."""

ATTRIBUTE_ATTEMPTS = 100  # at attributes that others write meanwhile, before the change fails
