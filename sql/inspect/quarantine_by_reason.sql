-- rows kept out of the facts, by feed and reason, with one of them as an example
SELECT
    feed,
    reason,
    COUNT(*) AS kept_out,
    MIN(load_id) AS first_load,
    MAX(load_id) AS last_load,
    MIN(payload) AS example
FROM quarantine
GROUP BY feed, reason
ORDER BY kept_out DESC, feed, reason;
