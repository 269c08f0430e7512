"""``octavo cache``. One file per sub-command; a folder that a server has is looked at through that server."""
