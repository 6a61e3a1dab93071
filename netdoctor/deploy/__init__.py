"""What puts netdoctor to work elsewhere, as files: ``netdoctor deploy NAME`` prints or writes a folder."""
