"""The numbers that tune groups, each with what it trades."""

ATTRIBUTE_ATTEMPTS = 100  # at attributes that others write meanwhile, before the change fails
MOVED_AT_ONCE = 64  # values under way while a tree is moved: requests in flight against memory
