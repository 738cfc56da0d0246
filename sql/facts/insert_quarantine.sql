INSERT INTO quarantine (load_id, feed, reason, detail, payload)
SELECT
    :load_id,
    feed,
    reason,
    detail,
    payload
FROM arriving_quarantine;
