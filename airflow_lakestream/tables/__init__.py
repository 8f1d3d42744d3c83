"""What tables of all formats have in common. A schema is PyIceberg's, for Delta, too; else Arrow only."""
