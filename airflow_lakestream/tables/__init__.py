"""Common parts of the sinks of all table formats. Schemas are PyIceberg's, for Delta as well; all data is Arrow."""
