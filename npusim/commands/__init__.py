"""The commands of ``npusim``, one file a purpose. Heavy imports happen inside the commands, so that help is quick."""
